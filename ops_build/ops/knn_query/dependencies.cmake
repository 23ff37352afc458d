# Distances are rounded after every operation, so that all devices order them alike.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/knn_query.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
