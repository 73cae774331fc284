"""What operators read and change: groups, operator commands, plans, the doctor, dead letters.

In: see the packages inside.
Out: their faces.
"""
