"""Who can observe a value, on any path, through any public method of a model.

``interpreter`` runs the model's code on abstract values over the live objects of the model and takes every branch.
What it cannot follow it records as an escape, so that a missing answer never looks like a missing use. ``observe``
answers the questions of the strategies from the events it recorded.
"""
