"""Which member is asked first, and who is next when it fails: one file a policy.

What is this room? Balancing policies.
What comes in? Views of the members that may be asked, the request's key, dice.
What goes out? The members' ids in the order they should be tried.
Who may import me? proxy, lab.
"""
