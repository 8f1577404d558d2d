"""Bringing the fleet to what a pool asks for.

What is this room? Bringing the fleet to what a pool asks for.
What comes in? A pool, facts, routes.
What goes out? A change.Plan, its human diff, and the use case that applies it.
Who may import me? watch, cli.
"""
