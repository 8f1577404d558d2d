"""Giving GPUs another MIG layout and their containers a new home, as one change that can be undone.

What is this room? The use cases of `mig reconfigure`: who loses a slice, where it goes, and the steps around them.
What comes in? A GPU, a wanted layout, facts, routes, the records of pools.
What goes out? A change.Plan, what it means for each container, and its carrying out.
Who may import me? cli.
"""
