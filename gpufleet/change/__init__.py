"""How anything is altered: plan, journal, apply, undo. It knows nothing of GPUs or vLLM.

What is this room? How anything is altered: plan, journal, apply, undo. It knows nothing of GPUs or vLLM.
What comes in? A Plan and a Session for each host.
What goes out? A settled run and its journal.
Who may import me? deploy, mig, watch, cli.
"""
