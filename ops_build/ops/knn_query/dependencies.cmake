# Distances are rounded after every operation, so that they have the same order on all devices.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/knn_query.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
