"""Replaying traffic against balancing policies in virtual time.

What is this room? A queue and cache model of engines, driven by a trace and a policy.
What comes in? Requests with times, lengths and prompt blocks; a policy that ships, or one to compare with.
What goes out? Time to first token, hit rate and balance of each policy.
Who may import me? lab, cli.
"""
