"""Cutting GPUs into slices: what a board allows, which layout is wanted, the smallest change between two layouts.

What is this room? Profiles, placements and layouts of NVIDIA MIG, as values; no command is run from here.
What comes in? Tables that nvidia-smi printed, or the shipped ones for a board by name; slices seen; wishes as typed.
What goes out? A layout with a placement for each slice, what to keep, destroy and create, or why it cannot be.
Who may import me? deploy, lab and cli.
"""
