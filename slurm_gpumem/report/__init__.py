"""What people read about jobs and estimates: tables, single jobs, summaries, pages."""
