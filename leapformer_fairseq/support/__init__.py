"""What everything else uses: errors, files and locks, lines, processes, progress, memory, signature."""
