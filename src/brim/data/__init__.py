"""From photographs and chats to packed rows: sources, the plan, decode, loader, transfer."""
