# Read by CMake at each project() of llama-cpp-python (CMAKE_PROJECT_INCLUDE): leaves out what corosrv never loads.
# llama-cpp-python builds libllama, ggml and libmtmd, all of which stay. It also insists on libllama-common, the code
# shared by llama.cpp's programs (a third of the compiler's work), by a cache entry; a plain variable goes before that.
set(LLAMA_BUILD_COMMON OFF)

# Says in the wheel what it was built with: see libllama.py.
if(PROJECT_NAME STREQUAL "llama_cpp" AND COROSRV_BUILD)
  file(WRITE "${CMAKE_BINARY_DIR}/corosrv-build.txt" "${COROSRV_BUILD}\n")
  install(FILES "${CMAKE_BINARY_DIR}/corosrv-build.txt" DESTINATION "${SKBUILD_PLATLIB_DIR}/llama_cpp")
endif()
