# Distances are rounded after every operation, so that the same points count on all devices. The kernel uses vectors
# of GCC that are wider than the baseline's registers; no function takes or returns them.
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/ball_query.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-Wno-psabi")
