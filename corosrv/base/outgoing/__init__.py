"""HTTP requests that corosrv makes itself: which URLs, redirects and addresses it takes. Nothing here sends them."""
