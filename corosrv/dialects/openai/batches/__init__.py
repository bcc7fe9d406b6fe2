"""Files and batches of OpenAI's API: both are kept in a folder, and the lines of batches run when there is room."""
