"""Foundations that every room may import: errors, files and locks, lines, processes, progress, memory, signature."""
