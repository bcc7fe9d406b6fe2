"""The Responses API: items to conversations, blocks to items, and a store that lets one go on from another."""
