"""The demonstration: a sample shop with live traffic on local servers, through the whole pipeline, compared row by row.

``demo`` puts it together. ``shop`` creates the source, and ``writer`` is the application that writes to it.
``timeline`` is a social network beside the shop, and ``page`` its web page. ``search_rebuild`` rebuilds a sink
meanwhile. ``result`` compares at the end. ``examples`` are queries to try. ``traffic`` observes, and ``screen`` shows
what happens.
"""
