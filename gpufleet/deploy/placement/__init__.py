"""Which replica goes on which slot; one file an algorithm.

What is this room? Which replica goes on which slot; one file an algorithm.
What comes in? A demand and the free slots.
What goes out? A placement, or Unplaceable with reasons.
Who may import me? deploy.
"""
