"""The demonstration: a sample shop with live traffic on local servers, through the whole pipeline, compared row by row.

``demo`` puts it together; ``shop`` makes the source, ``writer`` is the application that writes to it, ``examples`` are
queries to try, ``screen`` shows what happens.
"""
