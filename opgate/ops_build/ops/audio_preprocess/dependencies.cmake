include(${CMAKE_CURRENT_LIST_DIR}/../../audio/codecs/codecs.cmake)

find_path(OPGATE_SOXR_INCLUDE soxr.h)
find_library(OPGATE_SOXR soxr)
if(NOT OPGATE_SOXR_INCLUDE OR NOT OPGATE_SOXR)
  message(FATAL_ERROR "libsoxr's headers are missing: install libsoxr-dev (Debian, Ubuntu)")
endif()
target_include_directories(opgate_op_dependencies SYSTEM INTERFACE ${OPGATE_SOXR_INCLUDE})
target_link_libraries(opgate_op_dependencies INTERFACE ${OPGATE_SOXR})
