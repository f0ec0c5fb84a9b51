@echo off
rem Stops the service, removes it and everything that it programmed. What others made in HNS stays.
setlocal
set "HOME_DIR=%ProgramFiles%\telaio"
if not exist "%HOME_DIR%\telaio.exe" (
    echo telaio: it is not installed in %HOME_DIR% 1>&2
    exit /b 1
)
"%HOME_DIR%\telaio.exe" service uninstall
if errorlevel 1 exit /b %errorlevel%
"%HOME_DIR%\telaio.exe" cleanup
if errorlevel 1 exit /b %errorlevel%
del "%HOME_DIR%\telaio.exe"
exit /b 0
