"""One file a routing policy.

What is this room? One file a routing policy.
What comes in? Views of eligible endpoints.
What goes out? An order of candidates.
Who may import me? proxy, lab.
"""
