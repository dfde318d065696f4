"""Long Range Arena: protocols of the papers and a corrected one, grids of trainings, tables and scores."""
