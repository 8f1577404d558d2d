"""What lines of a log mean: how far a start came, and why it ended.

What is this room? What lines of a log mean: how far a start came, and why it ended.
What comes in? Nothing: tables of regular expressions.
What goes out? Signatures with their fixes, and start-up phases in order.
Who may import me? engine, docs.
"""
