"""What the operator declared about hosts.

What is this room? What the operator declared about hosts.
What comes in? YAML and a selector.
What goes out? A frozen Inventory, or every mistake with file and line.
Who may import me? hosts, change, deploy, lab, cli.
"""
