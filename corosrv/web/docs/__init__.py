"""The API's document and the page that shows it, which needs nothing from the network."""
