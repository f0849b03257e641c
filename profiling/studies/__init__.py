"""What backs the claims of README.md and DESIGN.md; each may run long, and has a command."""
