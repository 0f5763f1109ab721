"""Examples to read and run, and two studies: the paper's experiments (`paper`) and real data (`real_data`)."""
