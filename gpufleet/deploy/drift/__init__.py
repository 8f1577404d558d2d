"""Whether a pool is still what was deployed.

What is this room? Whether a pool is still what was deployed.
What comes in? The pool's record, facts of its hosts, a look into its replicas, the route table.
What goes out? Findings, each with what was asked, what is seen, and the operator's fix.
Who may import me? cli.
"""
