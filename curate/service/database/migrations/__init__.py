"""Changes of the tables from release to release, by alembic.

Edit `models.py`, then `python -m curate.service.database.migrations "add x"` writes the migration; read it before you
commit it. A migration that has been released is never edited.
"""
