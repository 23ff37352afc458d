# Decoding of sounds with libsndfile and libmpg123. The ops that need it include this file.
include_guard(GLOBAL)

find_path(OPGATE_SNDFILE_INCLUDE sndfile.h)
find_library(OPGATE_SNDFILE sndfile)
if(NOT OPGATE_SNDFILE_INCLUDE OR NOT OPGATE_SNDFILE)
  message(FATAL_ERROR "libsndfile's headers are missing: install libsndfile1-dev (Debian, Ubuntu)")
endif()

find_path(OPGATE_MPG123_INCLUDE mpg123.h)
find_library(OPGATE_MPG123 mpg123)
if(NOT OPGATE_MPG123_INCLUDE OR NOT OPGATE_MPG123)
  message(FATAL_ERROR "libmpg123's headers are missing: install libmpg123-dev (Debian, Ubuntu)")
endif()

find_path(OPGATE_OGG_INCLUDE ogg/ogg.h)
find_library(OPGATE_OGG ogg)
if(NOT OPGATE_OGG_INCLUDE OR NOT OPGATE_OGG)
  message(FATAL_ERROR "libogg's headers are missing: install libogg-dev (Debian, Ubuntu)")
endif()

file(GLOB sound_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(APPEND op_sources ${sound_sources})
target_include_directories(opgate_op_dependencies SYSTEM INTERFACE ${OPGATE_SNDFILE_INCLUDE} ${OPGATE_MPG123_INCLUDE} ${OPGATE_OGG_INCLUDE})
target_link_libraries(opgate_op_dependencies INTERFACE ${OPGATE_SNDFILE} ${OPGATE_MPG123} ${OPGATE_OGG})
