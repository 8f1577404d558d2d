"""Weights and images on the hosts before anything is stopped for them.

What is this room? Weights and images on the hosts before anything is stopped for them.
What comes in? Where weights and images come from, and what each host has already.
What goes out? Steps that bring the rest, whole and checked, or the reason why a source refuses.
Who may import me? deploy, cli.
"""
