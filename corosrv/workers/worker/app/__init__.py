"""The API for authors of handlers: applications, what handlers get, and what they give back."""
