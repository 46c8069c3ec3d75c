"""Tables, connections and migrations of the service's database: SQLite, or PostgreSQL by a URL."""
