"""Figures as a report: values in JSON, a table, plots and a page."""
