"""Other people's clients, unmodified, doing what people do with them every day against a server of their own."""
