"""Joins the parts of capture: opens the slot's stream, answers the assembler's questions, and watches tables, their
shapes, the slot and repair requests. ``live_stream`` builds one stream of all that."""
