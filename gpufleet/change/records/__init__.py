"""What of a run is written down: the journal, its records, and the copies on hosts.

What is this room? What of a run is written down: the journal, its records, and the copies on hosts.
What comes in? Events of a run.
What goes out? A journal that replays to the state the dead process had.
Who may import me? change, deploy, cli.
"""
