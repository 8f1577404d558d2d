"""Pure decisions; dice and time come in as arguments.

What is this room? Pure decisions; dice and time come in as arguments.
What comes in? Views of endpoints, a request's key.
What goes out? A decision as a value.
Who may import me? proxy, lab.
"""
