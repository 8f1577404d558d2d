"""What a host looks like right now.

What is this room? What a host looks like right now.
What comes in? A Session for each host.
What goes out? HostFacts in which every value is Known or Unknown; findings with a fix.
Who may import me? deploy, mig, lab, cli.
"""
