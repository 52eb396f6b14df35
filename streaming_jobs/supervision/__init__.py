"""Jobs started, watched, healed and stopped.

jobs          names of jobs, and what runs them
desired       what is wanted of a job, and what was done to it
healing       what to do about it: pure functions
control_loop  brings it to what is wanted, one look at a time
supervisor    starts, stops and looks at processes
standby       the next process, which comes up while the present one runs
foreground    a job in the process of the command
scheduled     pipelines without a process between two runs
lease         one process runs a pipeline
holders       which one that is, and how long another must wait
places        on which host, after which boot a process runs
origins       from which files its tables were imported
job_logs      its output
notices       what went wrong with it
rescaling     it goes on with more or fewer resources
exchange      a table and the version beside it change places under it
"""
