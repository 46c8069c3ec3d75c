"""The JSON of the API: what requests hold and what answers hold. Times are RFC 3339 in UTC."""
