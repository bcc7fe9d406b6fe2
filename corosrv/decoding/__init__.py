"""What clients send, checked and decoded: texts, JSON, and the fields of a body. Knows no HTTP and never waits."""
