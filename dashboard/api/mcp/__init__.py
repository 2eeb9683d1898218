"""POST /mcp: tools for assistants, over the API's operations."""
