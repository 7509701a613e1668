"""The demonstration: a sample shop with live traffic on local servers, through the whole pipeline, compared row by row.

``demo`` puts it together. ``shop`` makes the source, and ``writer`` is the application that writes to it.
``timeline`` is a network beside the shop, and ``page`` what people see of it.
``search_rebuild`` rebuilds a sink meanwhile. ``result`` compares at the end. ``examples`` are queries to try,
``traffic`` sees and ``screen`` shows what happens.
"""
