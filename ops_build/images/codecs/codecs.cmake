# Decoding and encoding of pictures, as a static library that uses libjpeg-turbo and libpng. The ops that need it include
# this file.
include_guard(GLOBAL)

find_package(JPEG QUIET)
if(NOT JPEG_FOUND)
  message(FATAL_ERROR "libjpeg-turbo's headers are missing: install libjpeg62-turbo-dev (Debian) or libjpeg-turbo8-dev (Ubuntu)")
endif()
find_package(PNG QUIET)
if(NOT PNG_FOUND)
  message(FATAL_ERROR "libpng's headers are missing: install libpng-dev (Debian, Ubuntu)")
endif()

file(GLOB codec_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_library(opgate_codecs STATIC EXCLUDE_FROM_ALL ${codec_sources})
target_include_directories(opgate_codecs PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../..)
target_compile_options(opgate_codecs PRIVATE ${sanitized})
target_link_libraries(opgate_codecs PRIVATE JPEG::JPEG PNG::PNG)
target_link_libraries(opgate_op_dependencies INTERFACE opgate_codecs)
