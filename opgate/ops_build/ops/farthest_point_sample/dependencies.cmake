# Distances are rounded after every operation, so that the samples are the same on all devices. The kernel uses vectors
# of GCC that are wider than the baseline's registers; no function takes or returns them.
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/farthest_point_sample.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-Wno-psabi")
