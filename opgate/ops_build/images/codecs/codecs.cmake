# Decoding and encoding of pictures with libjpeg-turbo, libpng, libwebp and libdeflate. The ops that need it include this file.
include_guard(GLOBAL)

find_package(JPEG QUIET)
if(NOT JPEG_FOUND)
  message(FATAL_ERROR "libjpeg-turbo's headers are missing: install libjpeg62-turbo-dev (Debian) or libjpeg-turbo8-dev (Ubuntu)")
endif()
find_package(PNG QUIET)
if(NOT PNG_FOUND)
  message(FATAL_ERROR "libpng's headers are missing: install libpng-dev (Debian, Ubuntu)")
endif()

find_path(OPGATE_DEFLATE_INCLUDE libdeflate.h)
find_library(OPGATE_DEFLATE deflate)
if(NOT OPGATE_DEFLATE_INCLUDE OR NOT OPGATE_DEFLATE)
  message(FATAL_ERROR "libdeflate's headers are missing: install libdeflate-dev (Debian, Ubuntu)")
endif()

find_path(OPGATE_WEBP_INCLUDE webp/decode.h)
find_library(OPGATE_WEBP webp)
if(NOT OPGATE_WEBP_INCLUDE OR NOT OPGATE_WEBP)
  message(FATAL_ERROR "libwebp's headers are missing: install libwebp-dev (Debian, Ubuntu)")
endif()

file(GLOB codec_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(APPEND op_sources ${codec_sources})
target_include_directories(opgate_op_dependencies SYSTEM INTERFACE ${OPGATE_DEFLATE_INCLUDE} ${OPGATE_WEBP_INCLUDE})
target_link_libraries(opgate_op_dependencies INTERFACE JPEG::JPEG PNG::PNG ${OPGATE_DEFLATE} ${OPGATE_WEBP})
