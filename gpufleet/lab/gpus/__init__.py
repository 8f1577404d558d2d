"""Simulated GPUs and the nvidia-smi that describes them.

What is this room? Simulated GPUs and the nvidia-smi that describes them.
What comes in? A board, a driver, slices, who holds what.
What goes out? nvidia-smi and nvidia-ctk output in the formats of several driver generations.
Who may import me? lab.
"""
