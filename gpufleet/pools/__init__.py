"""What should be served, and where it is served now.

What is this room? What should be served, and where it is served now.
What comes in? Pool definitions; members that came up.
What goes out? Pool values and the route table.
Who may import me? engine, deploy, proxy, export, lab, cli.
"""
